"""The cook phase: constants injected, shaders compiled, everything packed into one training archive."""
