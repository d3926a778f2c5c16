// A client in JavaScript that knows ds4c by its contract only: node client.cjs TARGET FOLDER_OF_PROTO PROMPT
// Runs in the folder that has @grpc/grpc-js and @grpc/proto-loader; prints one JSON document.
"use strict";
const { createRequire } = require("node:module");
const here = createRequire(process.cwd() + "/");
const grpc = here("@grpc/grpc-js");
const loader = here("@grpc/proto-loader");

const [target, folder, given] = process.argv.slice(2);
const prompt = JSON.parse(given);
const definition = loader.loadSync("ds4c/v1/engine.proto", {
  includeDirs: [folder], keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true,
});
const { InferenceService, SessionService, ModelService } = grpc.loadPackageDefinition(definition).ds4c.v1;
const credentials = grpc.credentials.createInsecure();
const inference = new InferenceService(target, credentials);
const sessions = new SessionService(target, credentials);
const models = new ModelService(target, credentials);

function call(service, method, request) {
  return new Promise((resolve, reject) => {
    service[method](request, (error, response) => (error ? reject(error) : resolve(response)));
  });
}

function generate(request) {
  return new Promise((resolve, reject) => {
    const found = { tokens: [], events: [], finished: null };
    const stream = inference.Generate(request);
    stream.on("data", (message) => {
      found.events.push(message.event);
      if (message.event === "delta") found.tokens.push(...message.delta.token_ids);
      if (message.event === "finished") found.finished = message.finished;
    });
    stream.on("error", reject);
    stream.on("end", () => resolve(found));
  });
}

async function main() {
  const stop = { max_output_tokens: 24, ignore_eos: true };
  const info = await call(models, "GetModelInfo", {});
  await call(sessions, "OpenSession", { session_id: "from-node" });
  const first = await generate({
    session_id: "from-node", prompt: { tokens: { ids: prompt } }, stop, return_token_ids: true,
  });
  const refused = await call(sessions, "Rewind", { session_id: "from-node", to_position: 9999 }).then(
    () => "no refusal", (error) => grpc.status[error.code]
  );
  const moved = await call(sessions, "Rewind", { session_id: "from-node", to_position: prompt.length });
  const again = await generate({ session_id: "from-node", stop, return_token_ids: true });
  const drawn = await generate({
    prompt: { tokens: { ids: prompt } }, sampling: { temperature: 0.9, seed: 7 }, stop, return_token_ids: true,
  });
  const fork = await call(sessions, "ForkSession", { session_id: "from-node", at_position: 5 });
  const listed = await call(sessions, "ListSessions", {});
  for (const session of listed.sessions) await call(sessions, "CloseSession", { session_id: session.session_id });
  console.log(JSON.stringify({
    model: info.served_model_name, first: first.tokens, events: [first.events[0], first.events.at(-1)],
    reason: first.finished.reason, digest: first.finished.prefix_digest, refused,
    kind: moved.rewind.kind, position: moved.session.position, again: again.tokens,
    again_digest: again.finished.prefix_digest, drawn: drawn.tokens, forked_at: fork.session.forked_at,
    sessions: listed.sessions.length,
  }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
