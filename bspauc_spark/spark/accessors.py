"""Getters and setters of the Params, written out so that editors and type checkers see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bspauc_spark.spark.params import BSPAUCParams

if TYPE_CHECKING:
    from typing_extensions import Self


class Accessors(BSPAUCParams):
    """``getX`` and ``setX`` for every Param, as Spark ML users expect."""

    def setFeaturesCol(self, value: str) -> Self:
        """Set ``featuresCol``."""
        return self._set(featuresCol=value)

    def setLabelCol(self, value: str) -> Self:
        """Set ``labelCol``."""
        return self._set(labelCol=value)

    def setPredictionCol(self, value: str) -> Self:
        """Set ``predictionCol``."""
        return self._set(predictionCol=value)

    def setRawPredictionCol(self, value: str) -> Self:
        """Set ``rawPredictionCol``."""
        return self._set(rawPredictionCol=value)

    def setProbabilityCol(self, value: str) -> Self:
        """Set ``probabilityCol``."""
        return self._set(probabilityCol=value)

    def setValidationIndicatorCol(self, value: str) -> Self:
        """Set ``validationIndicatorCol``."""
        return self._set(validationIndicatorCol=value)

    def setSeed(self, value: int) -> Self:
        """Set ``seed``."""
        return self._set(seed=value)

    def setPositiveLabel(self, value: float) -> Self:
        """Set ``positiveLabel``."""
        return self._set(positiveLabel=value)

    def setThreshold(self, value: float) -> Self:
        """Set ``threshold``."""
        return self._set(threshold=value)

    def getNetwork(self) -> str:
        """Value of ``network``."""
        return self.getOrDefault(self.network)

    def setNetwork(self, value: str) -> Self:
        """Set ``network``."""
        return self._set(network=value)

    def getHiddenLayers(self) -> list[int]:
        """Value of ``hiddenLayers``."""
        return self.getOrDefault(self.hiddenLayers)

    def setHiddenLayers(self, value: list[int]) -> Self:
        """Set ``hiddenLayers``."""
        return self._set(hiddenLayers=value)

    def getNumRandomFeatures(self) -> int:
        """Value of ``numRandomFeatures``."""
        return self.getOrDefault(self.numRandomFeatures)

    def setNumRandomFeatures(self, value: int) -> Self:
        """Set ``numRandomFeatures``."""
        return self._set(numRandomFeatures=value)

    def getKernelWidth(self) -> float | str:
        """Value of ``kernelWidth``."""
        width: float | str = self.getOrDefault(self.kernelWidth)
        return width

    def setKernelWidth(self, value: float | str) -> Self:
        """Set ``kernelWidth``."""
        return self._set(kernelWidth=value)

    def getFeaturesPerStep(self) -> int:
        """Value of ``featuresPerStep``."""
        return self.getOrDefault(self.featuresPerStep)

    def setFeaturesPerStep(self, value: int) -> Self:
        """Set ``featuresPerStep``."""
        return self._set(featuresPerStep=value)

    def getSelfPaced(self) -> bool:
        """Value of ``selfPaced``."""
        return self.getOrDefault(self.selfPaced)

    def setSelfPaced(self, value: bool) -> Self:
        """Set ``selfPaced``."""
        return self._set(selfPaced=value)

    def getRounds(self) -> int:
        """Value of ``rounds``."""
        return self.getOrDefault(self.rounds)

    def setRounds(self, value: int) -> Self:
        """Set ``rounds``."""
        return self._set(rounds=value)

    def getPaceStart(self) -> float:
        """Value of ``paceStart``."""
        return self.getOrDefault(self.paceStart)

    def setPaceStart(self, value: float) -> Self:
        """Set ``paceStart``."""
        return self._set(paceStart=value)

    def getPaceEnd(self) -> float:
        """Value of ``paceEnd``."""
        return self.getOrDefault(self.paceEnd)

    def setPaceEnd(self, value: float) -> Self:
        """Set ``paceEnd``."""
        return self._set(paceEnd=value)

    def getPaceSchedule(self) -> str:
        """Value of ``paceSchedule``."""
        return self.getOrDefault(self.paceSchedule)

    def setPaceSchedule(self, value: str) -> Self:
        """Set ``paceSchedule``."""
        return self._set(paceSchedule=value)

    def getLambdaInit(self) -> float:
        """Value of ``lambdaInit``."""
        return self.getOrDefault(self.lambdaInit)

    def setLambdaInit(self, value: float) -> Self:
        """Set ``lambdaInit``."""
        return self._set(lambdaInit=value)

    def getLambdaGrowth(self) -> float:
        """Value of ``lambdaGrowth``."""
        return self.getOrDefault(self.lambdaGrowth)

    def setLambdaGrowth(self, value: float) -> Self:
        """Set ``lambdaGrowth``."""
        return self._set(lambdaGrowth=value)

    def getLambdaMax(self) -> float:
        """Value of ``lambdaMax``."""
        return self.getOrDefault(self.lambdaMax)

    def setLambdaMax(self, value: float) -> Self:
        """Set ``lambdaMax``."""
        return self._set(lambdaMax=value)

    def getNu(self) -> float:
        """Value of ``nu``."""
        return self.getOrDefault(self.nu)

    def setNu(self, value: float) -> Self:
        """Set ``nu``."""
        return self._set(nu=value)

    def getMu(self) -> float:
        """Value of ``mu``."""
        return self.getOrDefault(self.mu)

    def setMu(self, value: float) -> Self:
        """Set ``mu``."""
        return self._set(mu=value)

    def getOptimizer(self) -> str:
        """Value of ``optimizer``."""
        return self.getOrDefault(self.optimizer)

    def setOptimizer(self, value: str) -> Self:
        """Set ``optimizer``."""
        return self._set(optimizer=value)

    def getLearningRate(self) -> float:
        """Value of ``learningRate``."""
        return self.getOrDefault(self.learningRate)

    def setLearningRate(self, value: float) -> Self:
        """Set ``learningRate``."""
        return self._set(learningRate=value)

    def getBatchSize(self) -> int:
        """Value of ``batchSize``."""
        return self.getOrDefault(self.batchSize)

    def setBatchSize(self, value: int) -> Self:
        """Set ``batchSize``."""
        return self._set(batchSize=value)

    def getStepsPerRound(self) -> int:
        """Value of ``stepsPerRound``."""
        return self.getOrDefault(self.stepsPerRound)

    def setStepsPerRound(self, value: int) -> Self:
        """Set ``stepsPerRound``."""
        return self._set(stepsPerRound=value)

    def getRegParam(self) -> float:
        """Value of ``regParam``."""
        return self.getOrDefault(self.regParam)

    def setRegParam(self, value: float) -> Self:
        """Set ``regParam``."""
        return self._set(regParam=value)

    def getPairing(self) -> str:
        """Value of ``pairing``."""
        return self.getOrDefault(self.pairing)

    def setPairing(self, value: str) -> Self:
        """Set ``pairing``."""
        return self._set(pairing=value)

    def getAveraging(self) -> float:
        """Value of ``averaging``."""
        return self.getOrDefault(self.averaging)

    def setAveraging(self, value: float) -> Self:
        """Set ``averaging``."""
        return self._set(averaging=value)

    def getPretrainSteps(self) -> int:
        """Value of ``pretrainSteps``."""
        return self.getOrDefault(self.pretrainSteps)

    def setPretrainSteps(self, value: int) -> Self:
        """Set ``pretrainSteps``."""
        return self._set(pretrainSteps=value)

    def getPretrainFraction(self) -> float:
        """Value of ``pretrainFraction``."""
        return self.getOrDefault(self.pretrainFraction)

    def setPretrainFraction(self, value: float) -> Self:
        """Set ``pretrainFraction``."""
        return self._set(pretrainFraction=value)

    def getEnsureDescent(self) -> bool:
        """Value of ``ensureDescent``."""
        return self.getOrDefault(self.ensureDescent)

    def setEnsureDescent(self, value: bool) -> Self:
        """Set ``ensureDescent``."""
        return self._set(ensureDescent=value)

    def getPatience(self) -> int:
        """Value of ``patience``."""
        return self.getOrDefault(self.patience)

    def setPatience(self, value: int) -> Self:
        """Set ``patience``."""
        return self._set(patience=value)

    def getStagingDir(self) -> str:
        """Value of ``stagingDir``."""
        return self.getOrDefault(self.stagingDir)

    def setStagingDir(self, value: str) -> Self:
        """Set ``stagingDir``."""
        return self._set(stagingDir=value)

    def getNumProcesses(self) -> int:
        """Value of ``numProcesses``."""
        return self.getOrDefault(self.numProcesses)

    def setNumProcesses(self, value: int) -> Self:
        """Set ``numProcesses``."""
        return self._set(numProcesses=value)

    def getLocalMode(self) -> bool:
        """Value of ``localMode``."""
        return self.getOrDefault(self.localMode)

    def setLocalMode(self, value: bool) -> Self:
        """Set ``localMode``."""
        return self._set(localMode=value)

    def getCheckpointDir(self) -> str:
        """Value of ``checkpointDir``."""
        return self.getOrDefault(self.checkpointDir)

    def setCheckpointDir(self, value: str) -> Self:
        """Set ``checkpointDir``."""
        return self._set(checkpointDir=value)

    def getMaxRestarts(self) -> int:
        """Value of ``maxRestarts``."""
        return self.getOrDefault(self.maxRestarts)

    def setMaxRestarts(self, value: int) -> Self:
        """Set ``maxRestarts``."""
        return self._set(maxRestarts=value)

    def getUseGpu(self) -> bool:
        """Value of ``useGpu``."""
        return self.getOrDefault(self.useGpu)

    def setUseGpu(self, value: bool) -> Self:
        """Set ``useGpu``."""
        return self._set(useGpu=value)

    def getMixedPrecision(self) -> bool:
        """Value of ``mixedPrecision``."""
        return self.getOrDefault(self.mixedPrecision)

    def setMixedPrecision(self, value: bool) -> Self:
        """Set ``mixedPrecision``."""
        return self._set(mixedPrecision=value)

    def getExactRows(self) -> int:
        """Value of ``exactRows``."""
        return self.getOrDefault(self.exactRows)

    def setExactRows(self, value: int) -> Self:
        """Set ``exactRows``."""
        return self._set(exactRows=value)

    def getTracking(self) -> str:
        """Value of ``tracking``."""
        return self.getOrDefault(self.tracking)

    def setTracking(self, value: str) -> Self:
        """Set ``tracking``."""
        return self._set(tracking=value)

    def getVerbose(self) -> bool:
        """Value of ``verbose``."""
        return self.getOrDefault(self.verbose)

    def setVerbose(self, value: bool) -> Self:
        """Set ``verbose``."""
        return self._set(verbose=value)
