// A job's plan for people. Thread-safe: pure functions.
#ifndef SLIPWAY_CLIENT_PLAN_REPORT_H_
#define SLIPWAY_CLIENT_PLAN_REPORT_H_

#include <string>

#include "engine/spec/plan.h"

namespace slipway::client {

// The summary and, below it, tables of groups, stages with their memory, and traffic.
std::string PlanTables(const engine::spec::Plan& plan);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_PLAN_REPORT_H_
