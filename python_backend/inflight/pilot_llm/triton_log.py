"""Sends the engine's log to Triton's, so that one log tells the whole story."""

import logging

import triton_python_backend_utils as pb_utils


class _TritonHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        logger = pb_utils.Logger
        if record.levelno >= logging.ERROR:
            logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            logger.log_warn(text)
        else:
            logger.log_info(text)


def log_to_triton() -> None:
    """From now on everything of `pilot_llm` from INFO on. Once per process: Triton starts one for each instance."""
    logger = logging.getLogger("pilot_llm")
    logger.handlers = [_TritonHandler()]
    logger.setLevel(logging.INFO)
    logger.propagate = False
