"""What a fit leaves behind: history, summary, figures, report, MLflow runs."""
