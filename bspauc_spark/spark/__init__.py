"""What makes a Spark ML stage: Params, what they ask for, and saving through Spark."""
