from .hosted import register as register
from .inside import FlowerStrategy as FlowerStrategy
