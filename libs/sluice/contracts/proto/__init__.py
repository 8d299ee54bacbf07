"""Messages of the bus to protobuf and back."""
