"""The clients of `proto/clients`: each is built and tried as its users would do."""
