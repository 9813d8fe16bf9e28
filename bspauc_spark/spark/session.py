"""What a Spark session is asked: whose it is, where its tasks run, and how many at once."""

from __future__ import annotations

from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether this process is a client of Spark Connect, which has no context, and a machine of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def setting(spark: SparkSession, name: str, default: str = "") -> str:
    """A setting of the session; ``default`` also where this user may not read it."""
    try:
        return spark.conf.get(name, default) or default
    except Exception:
        # Shared compute hides some settings from its users.
        return default


def is_local_master(spark: SparkSession) -> bool:
    """Whether the session's tasks run in the process of Spark's driver."""
    master = setting(spark, "spark.master")
    return master == "local" or master.startswith("local[")


def shares_disks(spark: SparkSession) -> bool:
    """Whether the session's tasks are sure to see this machine's folders."""
    return is_local_master(spark) and not is_connect(spark)


def slots(spark: SparkSession) -> int | None:
    """How many tasks can run at once, as Spark counts for a barrier stage; None where it cannot be asked."""
    try:
        context = spark.sparkContext._jsc.sc()
    except Exception:
        # Spark Connect has no context.
        return None
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
