"""convtrain: fits a neural image with Vulkan compute shaders. This package is the run phase."""

__version__ = "0.1.0"
