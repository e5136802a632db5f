%% Lines to a user, and closing its connection without waiting for it.
-module(gateway_socket).
-export([send/2, write/2, close/1, cut_off/1]).

-define(LAST_LINES_MS, 1000).  % for a user that may be gone

send(Socket, Content) -> write(Socket, gateway_json:encode(Content)).
write(Socket, Line) -> gen_tcp:send(Socket, Line) =:= ok orelse throw(closed).

%% By itself, gen_tcp:close/1 waits for three minutes for a user that does not read.
close(Socket) ->
    is_written(Socket) orelse timer:sleep(?LAST_LINES_MS),
    case is_written(Socket) of
        true -> gen_tcp:close(Socket);
        false -> cut_off(Socket)
    end.

is_written(Socket) -> inet:getstat(Socket, [send_pend]) =:= {ok, [{send_pend, 0}]}.

%% Drop what is not sent, and close.
cut_off(Socket) ->
    inet:setopts(Socket, [{linger, {true, 0}}]),
    gen_tcp:close(Socket).
