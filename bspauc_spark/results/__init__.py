"""What a fit leaves behind: its history, summary, plots, report and MLflow run."""
