"""Live Vulkan objects. Everything above this package sees plain data and the engine, never Vulkan."""
