/**
 * An MQTT broker whose silent clients are found by the sidecar.
 *
 *     node broker.js --sidecar /run/liveness/gateway.sock --name mqtt-1 --port 1883
 *
 * Copy `watch` into your broker: it is all that the sidecar needs.
 */
import net from 'node:net'
import { parseArgs } from 'node:util'
import { Aedes } from 'aedes'
import { Sidecar } from 'liveness-client'

const FLUSH_S = 1 // the longest that the sidecar lets a gateway collect activity
const MAX_TIMEOUT_S = 86_400
const IDENTIFIER_REJECTED = 2 // the code in CONNACK

/**
 * Have the sidecar watch the clients of a broker: the user is the MQTT client id. Call it
 * after `broker.authenticate` and `broker.preConnect` are set.
 *
 * @param {Aedes} broker
 * @param {Sidecar} sidecar
 */
async function watch(broker, sidecar) {
  const { preConnect, authenticate } = broker
  const keepalives = new WeakMap() // by client, in seconds; 0: the client promised nothing
  const conns = new WeakMap() // by client
  const clients = new Map() // by conn

  broker.preConnect = (client, packet, done) => {
    keepalives.set(client, packet.keepalive)
    // The broker has a timer for each client, too. It is the fallback, later than the sidecar.
    if (packet.keepalive > 0) packet.keepalive = 2 * (packet.keepalive + FLUSH_S)
    preConnect.call(broker, client, packet, done)
  }

  // A client that takes a client id over is logged in before the broker closes the other
  // one. So the sidecar sees one user who moves, not one who leaves and comes back.
  broker.authenticate = (client, username, password, done) => {
    authenticate.call(broker, client, username, password, (error, isAllowed) => {
      if (error || !isAllowed || client.closed) return done(error, isAllowed)
      try {
        logIn(client)
      } catch (refusal) { // of a client id that is no uid, such as one above 255 bytes
        return done(Object.assign(refusal, { returnCode: IDENTIFIER_REJECTED }), false)
      }
      done(null, true)
    })
  }

  function logIn(client) {
    const conn = sidecar.newConn()
    sidecar.login(client.id, conn, { timeout: timeoutOf(keepalives.get(client)) })
    conns.set(client, conn)
    clients.set(conn, client)
    client.conn.on('readable', () => sidecar.keepalive(client.id, conn)) // any packet
    client.conn.on('close', () => {
      clients.delete(conn)
      sidecar.logout(client.id, conn)
    })
  }

  broker.on('publish', (packet, client) => {
    if (conns.has(client)) sidecar.message(client.id, conns.get(client))
  })

  for await (const end of sidecar.ended()) {
    console.log(`closing ${JSON.stringify(end.uid)}: ${end.reason}`)
    clients.get(end.conn)?.close() // publishes its will
  }
}

/** MQTT grants one and a half keepalive intervals; a packet may wait for a flush. */
function timeoutOf(keepalive) {
  return keepalive > 0 ? Math.min(1.5 * keepalive + FLUSH_S, MAX_TIMEOUT_S) : MAX_TIMEOUT_S
}

const { values } = parseArgs({ options: {
  sidecar: { type: 'string', default: '/run/liveness/gateway.sock' },
  name: { type: 'string', default: 'mqtt-1' },
  port: { type: 'string', default: '1883' },
} })
const sidecar = new Sidecar(values.sidecar, { name: values.name })
const broker = await Aedes.createBroker() // give it an `authenticate` here: it lets all in
watch(broker, sidecar)
const server = net.createServer(broker.handle)
server.listen(Number(values.port), '127.0.0.1', () =>
  console.log(`${values.name} listens on 127.0.0.1:${server.address().port}`))
process.on('SIGTERM', () => broker.close(async () => {
  await sidecar.close()
  process.exit(0)
}))
