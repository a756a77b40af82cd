from pipeline.cli.tasks import *
