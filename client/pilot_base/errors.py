"""The root of the tree of exceptions. Each package derives its own:

    PilotError
      DownloadError          a pinned package could not be fetched or verified     (pilot_base)
      FolderError            a folder to work in cannot be had                     (pilot_base)
      ServerError            a server could not be found, started or stopped       (pilot_server)
      ClientError            a request was refused or not answered                 (pilot_client)
      CheckError             a model repository could not be read                  (pilot_check)
      ExportError            a step of the export failed                           (pilot_export)
      PerfError              a measurement or a study failed                       (pilot_perf)

The `tritonpilot` command prints the message of a PilotError as one line, and exits with 1.
Any other exception is a defect of ours and keeps its traceback.
"""


class PilotError(Exception):
    """Something that the user can mend. The message says what was wrong, where, and what to do."""
