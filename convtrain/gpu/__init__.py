"""The GPU layer: a snapshot of a device, a pure plan computed from it, and the live objects that execute the plan."""
