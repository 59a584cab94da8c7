module penstock/bench

go 1.19
