// How requests and answers stand on the wire, by RFC 9112: lengths, chunks, trailers, versions, Host, targets.

#include <gtest/gtest.h>

#include "served_fake.h"

namespace memoir::test {
namespace {

constexpr const char* kChunkedHead = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

class Framing : public ServedFake {
 protected:
  int status_of(const std::string& request) const {
    RawClient client(port_);
    client.send(request);
    return client.read_response().status;
  }
  int status_of_chunks(const std::string& chunks) const { return status_of(kChunkedHead + chunks); }
};

// Section 7.1: sizes of any case and with leading zeros, extensions, a trailer. What follows is the next request.
TEST_F(Framing, ChunksMayHaveExtensionsAndATrailer) {
  start(answering("Hi"));
  const std::vector<std::string> bodies = {"f\r\n{\"prompt\": \"x\"}\r\n0\r\n\r\n",
                                           "F\r\n{\"prompt\": \"x\"}\r\n0\r\n\r\n",
                                           "000000000000000000f\r\n{\"prompt\": \"x\"}\r\n000\r\n\r\n",
                                           "f;a=b;c\r\n{\"prompt\": \"x\"}\r\n0;z\r\n\r\n",
                                           "f ; a=\"b;c\"\r\n{\"prompt\": \"x\"}\r\n0\r\n\r\n",
                                           "f\r\n{\"prompt\": \"x\"}\r\n0\r\nX-Sum: 1\r\nX-Empty:\r\n\r\n"};
  RawClient client(port_);
  for (const std::string& body : bodies) {
    client.send(kChunkedHead + body);
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.status, 200) << body << "\n" << response.body;
  }
  client.send_request("GET", "/health", "");
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(Framing, TheNameOfACodingIgnoresCase) {
  start(answering("Hi"));
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: ";
  const std::string body = "\r\n\r\nf\r\n{\"prompt\": \"x\"}\r\n0\r\n\r\n";
  EXPECT_EQ(status_of(head + "Chunked" + body), 200);
  EXPECT_EQ(status_of(head + "CHUNKED" + body), 200);
  EXPECT_EQ(status_of(head + "gzip, chunked" + body), 400);
  EXPECT_EQ(status_of(head + "chunked\r\nTransfer-Encoding: gzip" + body), 400);
}

TEST_F(Framing, MalformedChunksAre400) {
  start();
  for (const char* chunks :
       {"x\r\n", "-1\r\n", "\r\n", "0x1\r\na\r\n0\r\n\r\n", "1 2\r\na\r\n0\r\n\r\n", "1\na\r\n0\r\n\r\n",
        "1\r\naa\r\n0\r\n\r\n", "1\r\na0\r\n\r\n", "1;a\nb\r\na\r\n0\r\n\r\n", "0\r\nno field\r\n\r\n",
        "0\r\na b: c\r\n\r\n", "0\r\n: c\r\n\r\n", "0\r\na: b\nc\r\n\r\n"}) {
    EXPECT_EQ(status_of_chunks(chunks), 400) << chunks;
  }
  EXPECT_EQ(status_of_chunks("1;" + std::string(10'000, 'x')), 400);
  RawClient early(port_);
  early.send(std::string(kChunkedHead) + "5\r\nab");
  early.end_sending();
  EXPECT_EQ(early.read_response().status, 400);
}

// Told from the size alone: nothing of it has to come.
TEST_F(Framing, AChunkThatIsTooLargeIs413AtOnce) {
  server::ServerOptions options;
  options.http.max_body_bytes = 10'000;
  options.http.max_head_bytes = 2'000;
  start({}, options);
  for (const char* size : {"2711", "fffffffffffffff0", "ffffffffffffffff", "10000000000000000", "FFFFFFFFFFFFFFFFFF"}) {
    EXPECT_EQ(status_of_chunks(size + std::string("\r\n")), 413) << size;
  }
  EXPECT_EQ(status_of_chunks("2\r\nab\r\n270f\r\n"), 413);  // 10,001 together
  EXPECT_EQ(status_of_chunks("0\r\nX: " + std::string(3000, 'x')), 431);
  std::string many = "0\r\n";
  for (int i = 0; i < 400; ++i) many += "X: y\r\n";
  EXPECT_EQ(status_of_chunks(many), 431);
}

// Section 6.1: no Transfer-Encoding to a client of 1.0; the end of the connection is the stream's.
TEST_F(Framing, StreamsToClientsOf10HaveNoChunks) {
  start(answering("Hi there"));
  Json body = chat();
  body["stream"] = true;
  const std::string text = body.dump();
  for (const char* more : {"", "Connection: Keep-Alive\r\n"}) {
    RawClient client(port_);
    client.send("POST /v1/chat/completions HTTP/1.0\r\n" + std::string(more) +
                "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
    const std::string answer = client.read_all();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    const std::string head = answer.substr(0, answer.find("\r\n\r\n"));
    EXPECT_EQ(head.find("Transfer-Encoding"), std::string::npos) << head;
    EXPECT_EQ(head.find("Content-Length"), std::string::npos) << head;
    EXPECT_EQ(head.find("Keep-Alive"), std::string::npos) << head;
    EXPECT_NE(head.find("\r\nConnection: close"), std::string::npos) << head;
    const std::string stream = answer.substr(head.size() + 4);
    EXPECT_TRUE(stream.starts_with("data: {")) << stream;
    EXPECT_TRUE(stream.ends_with("\n\ndata: [DONE]\n\n")) << stream;
  }
}

// Section 3.2.
TEST_F(Framing, ThereIsOneHost) {
  start();
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /health HTTP/1.1\r\nHost:\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET /health HTTP/1.0\r\n\r\n"), 200);
}

// Section 3.2.2.
TEST_F(Framing, ATargetMayBeAWholeAddress) {
  start();
  const auto status_of_target = [&](const std::string& target) {
    return status_of("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
  };
  EXPECT_EQ(status_of_target("http://host/health"), 200);
  EXPECT_EQ(status_of_target("HTTP://host:80/health?x=/y"), 200);
  EXPECT_EQ(status_of_target("https://[::1]:8080/health"), 200);
  EXPECT_EQ(status_of_target("http://host"), 200);
  EXPECT_EQ(status_of_target("http://host?x=/y"), 200);
  EXPECT_EQ(status_of_target("http:///health"), 404);
  EXPECT_EQ(status_of_target("ftp://host/health"), 404);
  EXPECT_EQ(status_of_target("http://host/v1/chat/completions"), 405);
}

TEST_F(Framing, NothingSaysThatRangesAreTaken) {
  start();
  RawClient client(port_);
  client.send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answers = client.read_all();
  EXPECT_NE(answers.find("HTTP/1.1 200", 1), std::string::npos) << answers;
  EXPECT_EQ(answers.find("Accept-Ranges"), std::string::npos) << answers;
}

}  // namespace
}  // namespace memoir::test
