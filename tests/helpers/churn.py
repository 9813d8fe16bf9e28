"""A table of the shape of the best-known churn table: a blank where there is no number, words for flags and labels."""

from __future__ import annotations

import numpy as np
import pandas as pd

BLANKS = 11


def customers(rows: int = 1500, seed: int = 0) -> pd.DataFrame:
    """``TotalCharges`` is a blank for new customers; the others have too many different values to be categories."""
    rng = np.random.default_rng(seed)
    tenure = rng.integers(1, 73, rows)
    tenure[rng.choice(rows, BLANKS, replace=False)] = 0
    contract = rng.choice(["Month-to-month", "One year", "Two year"], rows, p=[0.55, 0.21, 0.24])
    monthly = np.round(rng.uniform(18, 119, rows), 2)
    total = np.round(tenure * monthly * rng.uniform(0.95, 1.05, rows), 2)
    risk = 1.2 * (contract == "Month-to-month") - tenure / 30 + monthly / 60 + rng.logistic(size=rows)
    return pd.DataFrame(
        {
            "customerID": [f"{k:04d}-ABCDE" for k in range(rows)],
            "gender": rng.choice(["Male", "Female"], rows),
            "SeniorCitizen": (rng.random(rows) < 0.16).astype(int),
            "Partner": rng.choice(["Yes", "No"], rows),
            "tenure": tenure,
            "Contract": contract,
            "MonthlyCharges": monthly,
            "TotalCharges": np.where(tenure > 0, total.astype(str), " "),
            "Churn": np.where(risk > np.quantile(risk, 0.735), "Yes", "No"),
        }
    )
