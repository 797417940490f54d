"""The gRPC service of queue-ti: queue.proto, and the module that protoc makes of it."""
