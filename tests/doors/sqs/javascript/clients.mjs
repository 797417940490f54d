// The AWS SDK and sqs-consumer against the door: exits with 0 if everything is as SQS would do it.
import assert from "node:assert/strict";
import {
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  GetQueueAttributesCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const sqs = new SQSClient({ endpoint: process.env.ENDPOINT, region: "us-east-1" });

async function sdk() {
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "from-javascript" }));
  const MessageAttributes = {
    amount: { DataType: "Number", StringValue: "250" },
    raw: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
  };
  // The SDK compares the MD5 of the body itself, and raises if it differs.
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "größe", MessageAttributes }));
  const received = await sqs.send(
    new ReceiveMessageCommand({
      QueueUrl,
      MaxNumberOfMessages: 10,
      MessageAttributeNames: ["All"],
      MessageSystemAttributeNames: ["All"],
    }),
  );
  const [message] = received.Messages;
  assert.equal(message.Body, "größe");
  assert.equal(message.MessageAttributes.amount.StringValue, "250");
  assert.deepEqual(message.MessageAttributes.raw.BinaryValue, new Uint8Array([0, 255]));
  assert.equal(message.Attributes.ApproximateReceiveCount, "1");
  const deleted = await sqs.send(
    new DeleteMessageBatchCommand({
      QueueUrl,
      Entries: [
        { Id: "good", ReceiptHandle: message.ReceiptHandle },
        { Id: "bad", ReceiptHandle: "nonsense" },
      ],
    }),
  );
  assert.deepEqual(deleted.Successful.map((one) => one.Id), ["good"]);
  assert.deepEqual(deleted.Failed.map((one) => one.Code), ["ReceiptHandleIsInvalid"]);
  await assert.rejects(
    sqs.send(new ReceiveMessageCommand({ QueueUrl: QueueUrl.replace("from", "not-from") })),
    QueueDoesNotExist,
  );
}

async function consumer() {
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "consumed" }));
  const Entries = [...Array(10).keys()].map((n) => ({ Id: `${n}`, MessageBody: `${n}` }));
  await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
  const handled = [];
  await new Promise((resolve, reject) => {
    const app = Consumer.create({
      queueUrl: QueueUrl,
      sqs,
      batchSize: 10,
      visibilityTimeout: 30,
      heartbeatInterval: 20,
      terminateVisibilityTimeout: true,
      handleMessage: async (message) => {
        if (message.Body === "3" && !handled.includes("failed")) {
          handled.push("failed");
          throw new Error("the first attempt fails, and the message becomes visible at once");
        }
        handled.push(message.Body);
        return message;
      },
    });
    app.on("processing_error", () => {});
    app.on("error", reject);
    app.on("response_processed", () => {
      if (handled.length === 11) app.stop();
    });
    app.on("stopped", resolve);
    app.start();
  });
  assert.deepEqual(handled.toSorted?.() ?? [...handled].sort(), [..."0123456789", "failed"]);
  const left = await sqs.send(
    new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }),
  );
  assert.equal(left.Attributes.ApproximateNumberOfMessages, "0");
  assert.equal(left.Attributes.ApproximateNumberOfMessagesNotVisible, "0");
}

await sdk();
await consumer();
console.log("passed");
