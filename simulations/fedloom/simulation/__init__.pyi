from .api import simulate as simulate
from .data.population import Examples as Examples
from .data.population import Population as Population
from .experiment import EngineSettings as EngineSettings
from .experiment import Experiment as Experiment
from .output.history import Result as Result
from .output.history import RoundRecord as RoundRecord
from .wire.harness import over_the_wire as over_the_wire
