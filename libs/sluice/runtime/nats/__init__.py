"""The bus over NATS JetStream: connection, streams, consumers, credentials, history."""
