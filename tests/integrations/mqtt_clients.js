/**
 * MQTT clients in one process. It takes orders from its standard input, a JSON object a line,
 * and prints what happens to the clients in the same way.
 */
import readline from 'node:readline'
import mqtt from 'mqtt'

const [port, keepalive] = process.argv.slice(2).map(Number)
const clients = new Map() // by id; of two with one id the newer
const print = (line) => console.log(JSON.stringify(line))

function connect(id) {
  const will = { topic: `will/${id}`, payload: 'gone' }
  const options = { host: '127.0.0.1', port, clientId: id, keepalive, will }
  const client = mqtt.connect({ ...options, reconnectPeriod: 0 })
  clients.set(id, client)
  client.on('connect', () => print({ connected: id }))
  client.on('message', (topic) => print({ received: topic }))
  client.on('error', ({ code }) => print({ refused: id, code }))
  client.on('close', () => print({ closed: id }))
}

for await (const line of readline.createInterface(process.stdin)) {
  const order = JSON.parse(line)
  for (const id of order.connect ?? []) connect(id)
  if (order.subscribe) clients.get(order.subscribe).subscribe('will/#')
}
process.exit(0)
