from .adapters.settings import Adapters as Adapters
from .aggregation import Aggregation as Aggregation
from .aggregation import Mean as Mean  # [aggregation] mean
from .aggregation import Means as Means
from .aggregation import TooFewUpdatesError as TooFewUpdatesError
from .aggregation import Updates as Updates
from .algorithms.feddyn import FedDyn as FedDyn  # [strategy] feddyn
from .algorithms.feddyn import FedDynRule as FedDynRule  # [own rule] feddyn
from .algorithms.fednova import FedNova as FedNova  # [strategy] fednova
from .algorithms.fednova import FedNovaRule as FedNovaRule  # [own rule] fednova
from .algorithms.ifca import Ifca as Ifca  # [strategy] ifca
from .algorithms.ifca import IfcaRule as IfcaRule  # [own rule] ifca
from .algorithms.mimelite import MimeLite as MimeLite  # [strategy] mimelite
from .algorithms.mimelite import MimeLiteRule as MimeLiteRule  # [own rule] mimelite
from .algorithms.qfedavg import QFedAvg as QFedAvg  # [strategy] qfedavg
from .algorithms.qfedavg import QFedAvgRule as QFedAvgRule  # [own rule] qfedavg
from .algorithms.scaffold import Scaffold as Scaffold  # [strategy] scaffold
from .algorithms.scaffold import ScaffoldRule as ScaffoldRule  # [own rule] scaffold
from .base import ServerOptimizer as ServerOptimizer
from .base import Strategy as Strategy
from .base import reduced as reduced
from .client_rules import ClientRule as ClientRule
from .client_rules import FedProx as FedProx  # [rule] fedprox
from .client_rules import LocalWork as LocalWork
from .client_rules import Plain as Plain  # [rule] plain
from .client_rules import SentTensor as SentTensor
from .client_rules import TensorAtStep as TensorAtStep
from .client_rules import TrainedTensor as TrainedTensor
from .exact.partial import DELTA as DELTA
from .exact.partial import Coverage as Coverage
from .exact.partial import Full as Full
from .exact.partial import Key as Key
from .exact.partial import Mask as Mask
from .exact.partial import Params as Params
from .exact.partial import Partial as Partial
from .exact.partial import Slice as Slice
from .exact.partial import TensorSpec as TensorSpec
from .exact.partial import exponent as exponent
from .exact.partial import weight_units as weight_units
from .local_training import LocalTraining as LocalTraining
from .local_training import RoundSettings as RoundSettings
from .metrics import MetricsSettings as MetricsSettings
from .metrics import summarize as summarize
from .optimizers.adaptive import FedAdagrad as FedAdagrad  # [strategy] fedadagrad
from .optimizers.adaptive import FedAdam as FedAdam  # [strategy] fedadam
from .optimizers.adaptive import FedAvgM as FedAvgM  # [strategy] fedavgm
from .optimizers.adaptive import FedYogi as FedYogi  # [strategy] fedyogi
from .optimizers.blockwise import Block as Block
from .optimizers.blockwise import blockwise as blockwise
from .optimizers.fedavg import FedAvg as FedAvg  # [strategy] fedavg
from .optimizers.fedlamb import FedLamb as FedLamb  # [strategy] fedlamb
from .optimizers.schedules import Schedule as Schedule
from .partial_work import PartialWork as PartialWork
from .personal.settings import Personal as Personal
from .privacy import Privacy as Privacy
from .registry import AGGREGATIONS as AGGREGATIONS
from .registry import CLIENT_RULES as CLIENT_RULES
from .registry import SELECTIONS as SELECTIONS
from .registry import STRATEGIES as STRATEGIES
from .registry import client_rule as client_rule
from .registry import strategy as strategy
from .robust import *
from .selection import *
from .staleness import STALENESS as STALENESS
from .staleness import Staleness as Staleness
from .staleness import discounted as discounted
from .staleness import staleness_weighting as staleness_weighting
from .state import State as State
