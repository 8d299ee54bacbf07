"""
The webhook's server: HTTPS in front of the pure review, and the certificate that it shows.

It waits for nothing but CPU while a pod is judged: no bus, no API server, no file. What it needs of them (its
certificate) is fetched beside, and an outage there leaves the last certificate in use.
"""
