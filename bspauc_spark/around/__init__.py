"""Self-paced selection around any classifier: folds, honest scores, blends, a selection, and a verdict on it."""
