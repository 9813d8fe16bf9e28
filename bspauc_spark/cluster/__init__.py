"""How the θ side runs elsewhere: the protocol that the loop sees, launches by TorchDistributor, messages."""
