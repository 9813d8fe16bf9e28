"""The paper's experiments: what ``jobs/reproduce.py`` runs."""
