/**
 * A chat gateway with a sidecar: one room, a TCP connection a user, a JSON object a line.
 *
 *     node gateway.js --sidecar /run/liveness/gateway.sock --port 7000
 *     nc 127.0.0.1 7000                    and type {"login": "ada"}
 */
import net from 'node:net'
import { parseArgs } from 'node:util'
import { Sidecar } from 'liveness-client'

const HOW_TO = 'log in with {"login": "ada"}; then {"say": "hi"}, {"ping": 1} or {"logout": 1}'
const MAX_LINE_BYTES = 4096
const MAX_UNSENT_BYTES = 65_536 // of a user that reads too slowly
const LOGIN_MS = 60_000 // a person types it
const LAST_LINES_MS = 1000 // for a user that may be gone
const NAME = /^(?:[^\p{C}\p{Z}]| ){1,32}$/u // printable characters
const { values: options } = parseArgs({ options: {
  sidecar: { type: 'string', default: '/run/liveness/gateway.sock' },
  name: { type: 'string', default: 'gw-1' }, port: { type: 'string', default: '0' },
  most: { type: 'string', default: '1000' }, // connections at a time
} })
const sidecar = new Sidecar(options.sidecar, { name: options.name })
const room = new Map() // the users that are in, by conn
let connections = 0

class Connection {
  conn = sidecar.newConn()
  uid = '' // until it has logged in
  #unread = Buffer.alloc(0)

  constructor(socket) {
    this.socket = socket
    this.loginTimer = setTimeout(() => this.end('no login'), LOGIN_MS)
    connections++
    socket.on('data', (data) => this.#read(data))
    socket.on('error', () => {}) // connections end that way
    socket.on('close', () => {
      connections--
      this.#leave()
    })
    if (connections > Number(options.most)) this.end('the gateway is full, come back later')
    else this.send({ welcome: HOW_TO })
  }

  send(content) {
    const line = JSON.stringify(content).replace(/[\x7f-\x9f]/g, '') // codes of terminals
    if (this.socket.writable) this.socket.write(`${line}\n`)
    if (this.socket.writableLength > MAX_UNSENT_BYTES) this.socket.destroy()
  }

  end(reason) {
    this.#leave()
    this.send({ bye: reason })
    this.socket.removeAllListeners('data').resume().end()
    setTimeout(() => this.socket.destroy(), LAST_LINES_MS).unref()
  }

  #leave() {
    clearTimeout(this.loginTimer)
    if (room.delete(this.conn)) sidecar.logout(this.uid, this.conn)
  }

  #read(data) {
    const lines = Buffer.concat([this.#unread, data]).toString('latin1').split('\n')
    if (lines.some((line) => line.length > MAX_LINE_BYTES)) return this.end('too long a line')
    this.#unread = Buffer.from(lines.pop(), 'latin1')
    for (const line of lines) {
      if (room.has(this.conn)) sidecar.keepalive(this.uid, this.conn)
      if (this.socket.writable) this.#do(Buffer.from(line, 'latin1').toString())
    }
  }

  #do(line) {
    let request
    try { request = JSON.parse(line) } catch { /* it is answered as any other */ }
    const isIn = room.has(this.conn)
    if (!this.uid && typeof request?.login === 'string' && NAME.test(request.login)) {
      clearTimeout(this.loginTimer)
      this.uid = request.login
      room.set(this.conn, this)
      sidecar.login(this.uid, this.conn)
      this.send({ joined: this.uid, users: room.size })
    } else if (isIn && typeof request?.say === 'string') {
      sidecar.message(this.uid, this.conn)
      for (const other of room.values()) other.send({ uid: this.uid, say: request.say })
    } else if (request?.ping !== undefined) this.send({ pong: 1 })
    else if (request?.logout !== undefined) this.end('logout')
    else this.send({ error: HOW_TO })
  }
}

process.on('SIGTERM', async () => {
  for (const connection of room.values()) connection.end('the gateway stops')
  await sidecar.close()
  process.exit(0)
})
const server = net.createServer((socket) => new Connection(socket))
server.listen(Number(options.port), '127.0.0.1', () =>
  console.log(`${options.name} listens on 127.0.0.1:${server.address().port}`))
for await (const end of sidecar.ended()) room.get(end.conn)?.end(end.reason)
