"""What a kubelet's plugins share: sockets at the places where it looks, and their registration."""
