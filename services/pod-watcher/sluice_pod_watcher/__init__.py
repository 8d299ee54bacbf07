"""The source of requests: reads what people wrote (a folder of Pod manifests), and tells the bus."""
