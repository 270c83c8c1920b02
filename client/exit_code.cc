#include "client/exit_code.h"

namespace slipway::client {

int ExitCodeOf(v1::JobState state) {
  if (state == v1::JOB_STATE_FAILED) return kExitJobFailed;
  if (state == v1::JOB_STATE_CANCELLED) return kExitJobCancelled;
  return kExitOk;
}

std::string ExitCodeHelp() {
  return "Exit codes:\n"
         "  0    done\n"
         "  1    any other error\n"
         "  2    wrong arguments, or a job that is not valid\n"
         "  3    not found\n"
         "  4    not allowed\n"
         "  5    the state does not allow it, or a conflict\n"
         "  6    the server is not there or did not answer in time\n"
         "  7    a quota or limit is used up\n"
         "  8    the job failed (watch, wait, logs -f)\n"
         "  9    the job was cancelled (watch, wait, logs -f)\n"
         "  130  interrupted (Ctrl-C); the job itself goes on\n"
         "  141  whoever read the output has gone (`| head`); the job itself goes on\n";
}

}  // namespace slipway::client
