%% A chat gateway with a sidecar: one room, a JSON object a line, a process for each user.
-module(gateway).
-export([main/0, init/1, handle_event/2]).
-import(gateway_socket, [send/2, write/2, close/1, cut_off/1]).

-define(HOW_TO, <<"log in with {\"login\": \"ada\"}; then {\"say\": \"hi\"}, {\"ping\": 1} or {\"logout\": 1}">>).
-define(MAX_LINE, 4096).
-define(MAX_UNSENT, 128).     % lines for a user that reads too slowly

main() ->
    #{"--sidecar" := Path, "--name" := Name, "--port" := Port, "--most" := Most} =
        options(init:get_plain_arguments(), #{"--name" => "gw-1", "--port" => "0", "--most" => "1000"}),
    ok = gen_event:swap_handler(erl_signal_server, {erl_signal_handler, []}, {?MODULE, self()}),
    {ok, Link} = liveness:connect(#{path => list_to_binary(Path), name => list_to_binary(Name)}),
    room = ets:new(room, [named_table, public]),
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port), [binary, {active, false}, {reuseaddr, true},
        {ip, {127, 0, 0, 1}}, {backlog, 512}, {packet, line}, {packet_size, ?MAX_LINE}, {buffer, ?MAX_LINE + 1},
        {send_timeout, 5000}, {send_timeout_close, true}]),
    {ok, Bound} = inet:port(Listener),
    io:format("~ts listens on 127.0.0.1:~b~n", [Name, Bound]),
    spawn_link(fun() -> close_ended(Link) end),
    spawn_link(fun() -> accept(Listener, Link, counters:new(1, []), list_to_integer(Most)) end),
    receive stop -> [liveness:logout(Link, Uid, Conn) || {Conn, Uid, _, _} <- ets:tab2list(room)] end,
    liveness:close(Link),
    halt(0).

options([Key, Value | Rest], Options) -> options(Rest, Options#{Key => Value});
options([], Options) -> Options.

init({Main, _}) -> {ok, Main}.  % the handler of signals
handle_event(sigterm, Main) -> Main ! stop, {ok, Main};
handle_event(_, Main) -> {ok, Main}.

close_ended(Link) ->
    {_, Conn, Reason, _} = liveness:next_end(Link),
    [Pid ! {bye, Reason} || {_, _, Pid, _} <- ets:take(room, Conn)],
    close_ended(Link).

accept(Listener, Link, Users, Most) ->
    case gen_tcp:accept(Listener) of
        {ok, Socket} ->
            Pid = spawn(fun() -> receive go -> serve(Socket, Link, Users, Most) end end),
            gen_tcp:controlling_process(Socket, Pid) =:= ok andalso (Pid ! go);
        {error, _} -> timer:sleep(100)  % no file is left
    end,
    accept(Listener, Link, Users, Most).

serve(Socket, Link, Users, Most) ->
    counters:add(Users, 1, 1),
    Conn = liveness:new_conn(Link),
    try
        counters:get(Users, 1) > Most andalso throw(<<"the gateway is full, come back later">>),
        send(Socket, [{<<"welcome">>, ?HOW_TO}]),
        self() ! read_on,
        talk(Socket, Link, Conn, none, 60000)
    catch throw:Reason -> Reason =:= closed orelse catch send(Socket, [{<<"bye">>, Reason}])
    after
        [liveness:logout(Link, Uid, Conn) || {_, Uid, _, _} <- ets:take(room, Conn)],
        counters:sub(Users, 1, 1),
        close(Socket)
    end.

talk(Socket, Link, Conn, Uid, Timeout) ->
    receive
        {tcp, _, Line} ->
            binary:last(Line) =:= $\n orelse throw(<<"a line has at most 4096 bytes">>),
            Uid =:= none orelse liveness:keepalive(Link, Uid, Conn),
            Now = take(gateway_json:decode(Line), Socket, Link, Conn, Uid),
            erlang:send_after(20, self(), read_on),  % at most 50 lines a second
            talk(Socket, Link, Conn, Now, case Now of none -> Timeout; _ -> infinity end);
        read_on -> inet:setopts(Socket, [{active, once}]), talk(Socket, Link, Conn, Uid, Timeout);
        {say, Line} -> write(Socket, Line), talk(Socket, Link, Conn, Uid, Timeout);
        {bye, Reason} -> throw(Reason);
        {tcp_closed, _} -> throw(closed)
    after Timeout -> throw(<<"no login within 60 s">>)
    end.

take([{<<"login">>, Name}], Socket, Link, Conn, none) when is_binary(Name), Name =/= <<>>, byte_size(Name) =< 128 ->
    case string:length(Name) =< 32 andalso catch liveness:login(Link, Name, Conn) of
        ok ->
            ets:insert(room, {Conn, Name, self(), Socket}),
            send(Socket, [{<<"joined">>, Name}, {<<"users">>, ets:info(room, size)}]), Name;
        _ -> send(Socket, [{<<"error">>, ?HOW_TO}]), none  % no uid
    end;
take([{<<"say">>, Text}], _, Link, Conn, Uid) when is_binary(Text), Uid =/= none ->
    liveness:message(Link, Uid, Conn),
    Line = gateway_json:encode([{<<"uid">>, Uid}, {<<"say">>, Text}]),
    [say(Line, Pid, To) || {_, _, Pid, To} <- ets:tab2list(room)], Uid;
take([{<<"ping">>, _}], Socket, _, _, Uid) -> send(Socket, [{<<"pong">>, 1}]), Uid;
take([{<<"logout">>, _}], _, _, _, _) -> throw(<<"logout">>);
take(_, Socket, _, _, Uid) -> send(Socket, [{<<"error">>, ?HOW_TO}]), Uid.

%% A user that reads too slowly is cut off, without waiting for it.
say(Line, Pid, Socket) ->
    case process_info(Pid, message_queue_len) of
        {_, Length} when Length > ?MAX_UNSENT -> cut_off(Socket);
        _ -> Pid ! {say, Line}
    end.
