from pipeline.tasks import *
