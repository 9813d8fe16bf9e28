"""Random Params that belong together, of fits that end soon."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.5, 1e-45, 1e-30, -1e20, 3e38)


def choice(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


SMALL = {
    "rounds": choice(1, 2, 3),
    "stepsPerRound": choice(1, 3),
    "batchSize": choice(1, 4, 9),
    "verbose": st.just(False),
}
"""What every random fit is given, so that it ends soon."""

LAMBDAS = choice(1e-300, 0.1, 0.5, 2.0, 1e30)

FRACTIONS = choice(1e-6, 0.3, 0.7, 1.0)

PACES = st.one_of(
    st.fixed_dictionaries({}, optional={"paceStart": FRACTIONS, "paceEnd": FRACTIONS}),
    st.fixed_dictionaries({"paceSchedule": st.just("linear"), "lambdaMax": LAMBDAS}, optional={"lambdaInit": LAMBDAS}),
    st.fixed_dictionaries(
        {"paceSchedule": st.just("geometric"), "lambdaMax": LAMBDAS, "lambdaGrowth": choice(1.0, 1.5, 1e30)},
        optional={"paceStart": FRACTIONS},
    ),
)

BALANCES = st.one_of(
    st.just({}), *(st.fixed_dictionaries({n: choice(0.0, 1e-300, 0.1, 10.0, 1e30)}) for n in ("nu", "mu"))
)

OTHERS = {
    "network": choice("mlp", "linear", "kernel", "table", "table"),
    "inputs": choice("auto", "auto", "raw"),
    "handleInvalid": choice("error", "keep"),
    "hiddenLayers": choice([1], [4], [3, 2]),
    "numRandomFeatures": choice(1, 5),
    "kernelWidth": choice("median", 1e-30, 1.0, 1e30),
    "featuresPerStep": choice(0, 1, 7),
    "selfPaced": st.booleans(),
    "optimizer": choice("adamw", "adam", "sgd"),
    "learningRate": choice(1e-300, 1e-3, 0.1, 10.0, 1e6),
    "regParam": choice(0.0, 1e-300, 0.3, 1e3, 1e6),
    "pairing": choice("all", "matched"),
    "averaging": choice(0.0, 0.5, 0.99, 1.0),
    "pretrainSteps": choice(0, 1, 3),
    "pretrainFraction": choice(1e-9, 0.5, 1.0),
    "ensureDescent": st.booleans(),
    "exactRows": choice(0, 1, 100),
    "seed": choice(-1, 0, 7, 2**70),
}

PARAMS = st.tuples(st.fixed_dictionaries(SMALL, optional=OTHERS), PACES, BALANCES).map(
    lambda parts: {**parts[0], **parts[1], **parts[2]}
)
