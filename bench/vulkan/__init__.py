"""convtrain as a contender, driven through its command line, and a Vulkan copy where no torch measures bandwidth."""
