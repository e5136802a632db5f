%% The socket of a link. A process reads and another writes, so that reading goes on while
%% the sidecar reads slowly. It is not a socket of gen_tcp: that one throws away what was
%% not read yet when a write fails, and with it why the sidecar has closed the link.
-module(liveness_socket).
-export([connect/1, close/2]).

-define(CONNECT_MS, 5000).

%% {ok, Socket, Writer} or {error, Reason}. The writer takes {write, Bytes} and answers
%% {written, Writer}; what is read is the call {read, Socket, Bytes}, and its end the
%% message {closed, Socket}.
connect(Path) ->
    case socket:open(local, stream) of
        {ok, Socket} -> connect(Socket, socket:connect(Socket, #{family => local, path => Path}, ?CONNECT_MS));
        Error -> Error
    end.

connect(Socket, ok) ->
    Server = self(),
    spawn_link(fun() -> reader(Server, Socket) end),
    {ok, Socket, spawn_link(fun() -> monitor(process, Server), writer(Server, Socket) end)};
connect(Socket, Error) -> socket:close(Socket), Error.

%% The reader ends by itself.
close(Socket, Writer) ->
    unlink(Writer),
    exit(Writer, kill),
    socket:close(Socket).

%% It waits for each answer: what is not handled yet stays with the sidecar.
reader(Server, Socket) ->
    case socket:recv(Socket, 0) of
        {ok, Bytes} -> gen_server:call(Server, {read, Socket, Bytes}, infinity), reader(Server, Socket);
        {error, _} -> Server ! {closed, Socket}
    end.

%% If it cannot write, the reader says so, after what is left to read.
writer(Server, Socket) ->
    receive
        {write, Bytes} ->
            _ = socket:send(Socket, Bytes),
            Server ! {written, self()},
            writer(Server, Socket);
        {'DOWN', _, process, Server, _} -> ok
    end.
