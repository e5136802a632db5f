%% Why a link has ended: how long to wait before the next, and what to log.
-module(liveness_ends).
-export([pause/3, text/1]).

-define(MAX_BACKOFF, 10.0).
-define(MAX_REFUSED_BACKOFF, 30.0).

%% The level to log at, the next state, and the shortest and longest pause in seconds.
%% Failures: how many in a row before; Links: how many there were since the start.
pause({error, <<"replaced">>, _}, _, _) -> {error, replaced, 0, 0};
pause({error, Code, _}, Failures, _) when Code =:= <<"bad-hello">>; Code =:= <<"not-allowed">>;
                                          Code =:= <<"unsupported-protocol">> ->
    Longest = min(math:pow(2, min(Failures, 10)), ?MAX_REFUSED_BACKOFF),
    {error, refused, Longest / 2, Longest};
pause({bad_frame, _}, Failures, Links) -> backoff(Failures, Links);
pause({error, _, _}, Failures, Links) -> backoff(Failures, Links);
pause({no_link, _}, _, Links) -> {warning, unlinked(Links), 0.25, 0.75};
pause(_, _, Links) -> {warning, unlinked(Links), 0, 0.5}.

backoff(Failures, Links) ->
    {error, unlinked(Links), 0, min(math:pow(2, min(Failures, 10)), ?MAX_BACKOFF)}.

unlinked(0) -> connecting;
unlinked(_) -> away.

text(linked) -> "linked";
text(ended) -> "it has ended; it is made again";
text({no_link, eacces}) -> "not allowed to connect; be its user, or of its group";
text({no_link, Reason}) -> io_lib:format("no sidecar there (~p); start it, or correct the path", [Reason]);
text({error, <<"replaced">>, Message}) ->
    ["another process has this name, and resume/1 takes it over again; give each a name of its own: ", Message];
text({error, Code, Message}) -> [Code, ": ", Message, "; users are not watched until it is fixed"];
text(What) -> io_lib:format("~0P", [What, 20]).
