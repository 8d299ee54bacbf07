"""The webhook's server: HTTPS in front of the pure review, and its certificate. A review needs CPU only: no bus, no API
server, no file. The certificate is fetched beside, and during an outage the last one stays in use."""
