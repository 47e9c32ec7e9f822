"""The pass graph: plain data shared by cook and run, and the API that builds it."""
