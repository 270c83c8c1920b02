#include "engine/topology/pipeline_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace slipway::engine::topology {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> Layers(std::string_view layout) { return ParsePipelineLayout(layout).value(); }

TEST(PipelineLayout, CharactersAndRepetitions) {
  EXPECT_THAT(Layers("EttL"), ElementsAre(2));
  EXPECT_THAT(Layers("Et*3|t*4|L"), ElementsAre(3, 4, 0));
  EXPECT_THAT(Layers("Ettt|(tt|)*3L"), ElementsAre(3, 2, 2, 2, 0));
  EXPECT_THAT(Layers("E(|t,t)*2,|L"), ElementsAre(0, 2, 2, 0));
  EXPECT_THAT(Layers("E|(t*2|t|)*2tL"), ElementsAre(0, 2, 1, 2, 1, 1));
  EXPECT_THAT(Layers("E,t,*,3,L"), ElementsAre(3));
}

TEST(PipelineLayout, StagesMayBeEmpty) {
  EXPECT_THAT(Layers("Et||t||L"), ElementsAre(1, 0, 1, 0, 0));
  EXPECT_THAT(Layers("Et|*3tL"), ElementsAre(1, 0, 0, 1));
}

struct Wrong {
  std::string layout;
  std::string position;
  std::string message;
};

TEST(PipelineLayout, FaultsSayWhereAndWhatIsRight) {
  for (const Wrong& wrong : std::vector<Wrong>{
           {"", "position 1", "empty"},
           {"ttL", "position 1", "must begin with E"},
           {"|EtL", "position 1", "must begin with E"},
           {"Et|t", "position 4", "must end with L"},
           {"EtL|", "position 4", "must end with L"},
           {"EtEtL", "position 3", "a second E"},
           {"EtLtL", "position 3", "L before the end"},
           {"EtmL", "position 3", "multi-token prediction"},
           {"Et xL", "position 3", "' ' is not known"},
           {"EtdL", "position 3", "'d' is not known"},
           {"E*tL", "position 3", "a count from 1"},
           {"Et*0L", "position 4", "a count from 1"},
           {"Et*L", "position 4", "a count from 1"},
           {"Et*99999999999999999999L", "position 4", "a count from 1 to 1048576"},
           {"Et*1048575t*9L", "position 11", "more than 1048576 pieces"},
           {"*3EtL", "position 1", "'*' stands after"},
           {"Et**2L", "position 4", "a count from 1"},
           {"E(t|L", "position 2", "never closed"},
           {"E(t(t)*2)*2L", "position 4", "do not stand inside"},
           {"Et)*2L", "position 3", "without '('"},
           {"E(tt)L", "position 5", "'*' and a count must follow"},
           {"E(tt)", "position 5", "'*' and a count must follow"},
           {"E()*2L", "position 2", "are empty"},
       }) {
    EXPECT_THAT(ParsePipelineLayout(wrong.layout),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(wrong.position), HasSubstr(wrong.message))))
        << wrong.layout;
  }
}

}  // namespace
}  // namespace slipway::engine::topology
