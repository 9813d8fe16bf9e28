"""What the spark-submit jobs share: arguments, tables, features from columns, where outputs may go."""
