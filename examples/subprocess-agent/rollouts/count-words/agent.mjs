// An agent that knows nothing of rollouts: an OpenAI base URL and key, a question, one tool.
import process from "node:process";

const question = process.argv[2];
const tool = {
  type: "function",
  function: {
    name: "count_words",
    description: "Count the words of a text.",
    parameters: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
  },
};

const messages = [{ role: "user", content: question }];
for (let turn = 0; turn < 8; turn++) {
  const response = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      Authorization: `Bearer ${process.env.OPENAI_API_KEY}`,
    },
    body: JSON.stringify({ model: "policy", messages, tools: [tool] }),
  });
  if (!response.ok) {
    console.error(`the model answered ${response.status}: ${await response.text()}`);
    process.exit(1);
  }
  const reply = (await response.json()).choices[0].message;
  messages.push(reply);
  if (!reply.tool_calls) break;
  for (const call of reply.tool_calls) {
    const { text } = JSON.parse(call.function.arguments);
    const count = String(text.trim().split(/\s+/).length);
    messages.push({ role: "tool", tool_call_id: call.id, content: count });
  }
}
console.log(messages.at(-1).content);
