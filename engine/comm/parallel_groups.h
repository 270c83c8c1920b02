// The groups of one rank, made once per attempt in one canonical order (every rank makes the same list of groups in the
// same order and joins those that it is in). Passed explicitly; there is no "current group".
// Groups for collectives that have the same ranks share one communicator (a job of tensor parallelism alone has one,
// not four); point-to-point groups stand alone.
#ifndef SLIPWAY_ENGINE_COMM_PARALLEL_GROUPS_H_
#define SLIPWAY_ENGINE_COMM_PARALLEL_GROUPS_H_

#include "engine/comm/communicator.h"
#include "engine/topology/mesh.h"

namespace slipway::engine::comm {

// Every pointer is set; a group of size 1 is a SelfCommunicator.
struct ParallelGroups {
  CommPtr world;
  CommPtr tp;
  CommPtr cp;
  CommPtr dp;     // replicas of the same (tp, cp, pp) coordinate
  CommPtr dp_cp;  // the ranks over which gradients are summed and optimizer state is sharded
  CommPtr pp;
  CommPtr pp_back;    // the same ranks: gradients travel here, so that neither direction queues behind the other
  // With virtual stages the last pipeline rank sends on to the first, and gradients go the other way around. On two
  // ranks these messages have groups of their own, since they go against the stream of the others; else they are pp and
  // pp_back.
  CommPtr pp_around;
  CommPtr pp_around_back;
  CommPtr embedding;  // first and last pipeline stage, for tied embeddings
  CommPtr tp_cp;      // ranks with tokens of the same samples
  CommPtr tp_dp_cp;   // all ranks of a pipeline stage
  CommPtr etp;        // ranks that hold slices of the same experts
  CommPtr etp_ep;     // the ranks that hold a layer's experts between them, etp fastest
  CommPtr edp;        // the ranks over which experts' gradients are summed and their optimizer state is sharded
  CommPtr model;      // tp × pp: a norm is summed over dp_cp shards and this
};

// Makes one group out of world ranks; called for every group of the canonical list, also for those without this rank
// (returns null then).
class GroupFactory {
 public:
  virtual ~GroupFactory() = default;
  virtual CommPtr MakeGroup(const std::string& name, const std::vector<int>& world_ranks) = 0;
};

ParallelGroups MakeParallelGroups(const topology::Mesh& mesh, int rank, GroupFactory& factory);

// Those of a rank that is alone.
ParallelGroups MakeSoloGroups();

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_PARALLEL_GROUPS_H_
