// Embeddings over HTTP, field by field, over a fake engine. What the fields mean and look like: OpenAI's API reference
// (embeddings) and Ollama's (embed, embeddings).

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "memoir/server/embedding_routes.h"
#include "served_fake.h"

namespace memoir::test {
namespace {

class EmbeddingsOverHttp : public ServedFake {
 protected:
  RawResponse embed(const Json& changes, const std::string& path = "/v1/embeddings") {
    Json body = {{"model", "fake"}};
    body.update(changes);
    return post(path, body);
  }

  std::vector<float> embedding_of(const std::string& text, engine::Pooling pooling = engine::Pooling::kMean) const {
    return fake_embedding(tokenizer_->encode(text), pooling);
  }

  void expect_bad(const Json& changes, const std::string& param, const std::string& code = "") {
    const RawResponse response = embed(changes);
    EXPECT_EQ(response.status, 400) << changes << response.body;
    EXPECT_EQ(response.json().at("error").at("param"), Json(param)) << response.body;
    if (!code.empty()) {
      EXPECT_EQ(response.json()["error"].at("code"), Json(code));
    }
  }
};

TEST_F(EmbeddingsOverHttp, ATextHasEveryField) {
  start();
  const RawResponse response = embed({{"input", "Hello there!"}, {"user", "somebody"}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const Json answer = response.json();
  EXPECT_EQ(answer.at("object"), "list");
  EXPECT_EQ(answer.at("model"), "fake");
  ASSERT_EQ(answer.at("data").size(), 1U);
  EXPECT_EQ(answer["data"][0].at("object"), "embedding");
  EXPECT_EQ(answer["data"][0].at("index"), 0);
  EXPECT_EQ(answer["data"][0].at("embedding").get<std::vector<float>>(), embedding_of("Hello there!"));
  const std::size_t n_tokens = tokenizer_->encode("Hello there!").size();
  EXPECT_EQ(answer.at("usage"), (Json{{"prompt_tokens", n_tokens}, {"total_tokens", n_tokens}}));
  EXPECT_EQ(service_->last().embedding, engine::Pooling::kMean);
}

TEST_F(EmbeddingsOverHttp, ManyTextsKeepTheirOrderAndUseLittleOfTheQueue) {
  FakeService::Options engine;
  engine.max_running = 4;
  engine.max_queued = 3;
  start(std::move(engine));
  Json texts = Json::array();
  std::size_t n_tokens = 0;
  for (int i = 0; i < 200; ++i) {
    texts.push_back(std::string(static_cast<std::size_t>(1 + i % 17), 'x') + std::to_string(i));
    n_tokens += tokenizer_->encode(texts.back().get<std::string>()).size();
  }
  const RawResponse response = embed({{"input", texts}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json answer = response.json();
  ASSERT_EQ(answer.at("data").size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(answer["data"][i].at("index"), i);
    EXPECT_EQ(answer["data"][i].at("embedding").get<std::vector<float>>(), embedding_of(texts[i]));
  }
  EXPECT_EQ(answer["usage"].at("total_tokens"), n_tokens);
}

TEST_F(EmbeddingsOverHttp, TokensAreTakenAsTheyAre) {
  start();
  const Json one = embed({{"input", {5, 6, 7}}}).json();
  EXPECT_EQ(one.at("data")[0].at("embedding").get<std::vector<float>>(),
            fake_embedding({5, 6, 7}, engine::Pooling::kMean));
  const Json two = embed({{"input", {{5, 6, 7}, {8}}}}).json();
  ASSERT_EQ(two.at("data").size(), 2U);
  EXPECT_EQ(two["data"][1].at("embedding").get<std::vector<float>>(), fake_embedding({8}, engine::Pooling::kMean));
  EXPECT_EQ(two["usage"].at("prompt_tokens"), 4);
}

TEST_F(EmbeddingsOverHttp, Base64HasTheSameNumbers) {
  start();
  const Json answer = embed({{"input", "x"}, {"encoding_format", "base64"}}).json();
  EXPECT_EQ(answer.at("data")[0].at("embedding"), server::base64(embedding_of("x")));
}

// RFC 4648: 'M' 'a' 'n' are 77, 97, 110 and encode to "TWFu"; two bytes end in one '=', one byte in two.
TEST(EmbeddingText, Base64IsThatOfTheLittleEndianBytes) {
  EXPECT_EQ(server::base64({}), "");
  EXPECT_EQ(server::base64({1.0F}), "AACAPw==");                               // 00 00 80 3f
  EXPECT_EQ(server::base64({1.0F, -2.0F}), "AACAPwAAAMA=");                    // 00 00 80 3f 00 00 00 c0
  EXPECT_EQ(server::base64({1.0F, -2.0F, 0.5F}), "AACAPwAAAMAAAAA/");          // .. 00 00 00 3f
  EXPECT_EQ(server::base64({std::bit_cast<float>(0x006E614DU)}), "TWFuAA==");  // 4d 61 6e 00
}

TEST(EmbeddingText, NumbersAreReadBackAsTheyWere) {
  const std::vector<float> values = {0.1F, -1.0F / 3,    1e-30F,
                                     0,    1.6777216e7F, std::numeric_limits<float>::denorm_min()};
  EXPECT_EQ(nlohmann::json::parse(server::json_list(values)).get<std::vector<float>>(), values);
  EXPECT_EQ(server::json_list({}), "[]");
}

TEST_F(EmbeddingsOverHttp, PoolingIsTheServers) {
  server::ServerOptions options;
  options.routes.pooling = engine::Pooling::kLast;
  start({}, options);
  EXPECT_EQ(embed({{"input", "Hi"}}).json().at("data")[0].at("embedding").get<std::vector<float>>(),
            embedding_of("Hi", engine::Pooling::kLast));
}

TEST_F(EmbeddingsOverHttp, WhatIsWrongIsNamed) {
  start({}, {}, kPlainTemplate, {}, 64);
  expect_bad(Json::object(), "input");
  for (const Json& input : {Json(""), Json::array(), Json::array({"x", ""}), Json(3), Json::object(),
                            Json::array({"x", 3}), Json::array({Json::array()}), Json::array({-1}),
                            Json::array({1000000}), Json::array({1.5}), Json::array({nullptr})}) {
    expect_bad({{"input", input}}, "input");
  }
  expect_bad({{"input", std::vector<std::string>(2049, "x")}}, "input");
  expect_bad({{"input", std::vector<int>(65, 1)}}, "input", "context_length_exceeded");
  expect_bad({{"input", "x"}, {"encoding_format", "int8"}}, "encoding_format", "unsupported_parameter");
  expect_bad({{"input", "x"}, {"dimensions", 2}}, "dimensions", "unsupported_parameter");
  EXPECT_EQ(embed({{"input", "x"}, {"dimensions", kFakeEmbedding}}).status, 200);
  EXPECT_EQ(embed({{"input", "x"}, {"model", "other"}}).status, 404);
  EXPECT_EQ(embed({{"input", std::vector<int>(64, 1)}}).status, 200);
}

TEST_F(EmbeddingsOverHttp, AFullQueueAFailureAndAnEndAreTold) {
  FakeService::Options engine;
  engine.max_running = 0;
  engine.max_queued = 0;
  start(std::move(engine));
  EXPECT_EQ(embed({{"input", "x"}}).status, 429);
  TearDown();
  engine = {};
  engine.fails_after = 0;
  start(std::move(engine));
  const RawResponse response = embed({{"input", "x"}});
  EXPECT_EQ(response.status, 500);
  EXPECT_EQ(response.json().at("error").at("code"), "engine_error");
}

TEST_F(EmbeddingsOverHttp, AClientThatGoesAwayCancelsWhatRuns) {
  FakeService::Options engine;
  engine.prefill_delay = std::chrono::hours(1);
  start(std::move(engine));
  {
    RawClient client(port_);
    client.send_request("POST", "/v1/embeddings", Json{{"input", std::vector<std::string>(40, "x")}}.dump(), "");
    ASSERT_TRUE(eventually([&] { return service_->n_open() == 16; }));  // not all 40
  }
  EXPECT_TRUE(eventually([&] { return service_->n_open() == 0; }));
  EXPECT_EQ(service_->n_cancelled(), 16);
}

TEST_F(EmbeddingsOverHttp, OllamasEmbedTakesATextOrAList) {
  start();
  const Json one = embed({{"input", "Hi"}, {"keep_alive", "5m"}, {"options", {{"num_ctx", 100}}}}, "/api/embed").json();
  EXPECT_EQ(one.at("model"), "fake");
  EXPECT_EQ(one.at("embeddings").get<std::vector<std::vector<float>>>(),
            std::vector<std::vector<float>>{embedding_of("Hi")});
  EXPECT_EQ(one.at("prompt_eval_count"), tokenizer_->encode("Hi").size());
  EXPECT_GT(one.at("total_duration"), 0);
  const Json two = embed({{"input", {"Hi", "there"}}}, "/api/embed").json();
  EXPECT_EQ(two.at("embeddings").get<std::vector<std::vector<float>>>(),
            (std::vector<std::vector<float>>{embedding_of("Hi"), embedding_of("there")}));
  EXPECT_EQ(embed({{"input", ""}}, "/api/embed").json().at("embeddings"), Json::array());
  EXPECT_EQ(embed({{"input", 3}}, "/api/embed").status, 400);
  EXPECT_EQ(embed({{"input", "x"}, {"keep_alive", "soon"}}, "/api/embed").status, 400);
}

TEST_F(EmbeddingsOverHttp, OllamasEmbedCutsWhatIsTooLongUnlessToldNotTo) {
  start({}, {}, kPlainTemplate, {}, 8);
  const std::string text = "one two three four five six seven eight nine ten";
  std::vector<TokenId> tokens = tokenizer_->encode(text);
  ASSERT_GT(tokens.size(), 8U);
  tokens.resize(8);
  const Json answer = embed({{"input", text}}, "/api/embed").json();
  EXPECT_EQ(answer.at("embeddings")[0].get<std::vector<float>>(), fake_embedding(tokens, engine::Pooling::kMean));
  EXPECT_EQ(embed({{"input", text}, {"truncate", false}}, "/api/embed").status, 400);
}

TEST_F(EmbeddingsOverHttp, OllamasOlderFormHasOneText) {
  start();
  const Json answer = embed({{"prompt", "Hi"}}, "/api/embeddings").json();
  EXPECT_EQ(answer.at("embedding").get<std::vector<float>>(), embedding_of("Hi"));
  EXPECT_EQ(embed({{"prompt", ""}}, "/api/embeddings").json().at("embedding"), Json::array());
}

}  // namespace
}  // namespace memoir::test
