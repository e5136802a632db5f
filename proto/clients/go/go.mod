module liveness

go 1.19
