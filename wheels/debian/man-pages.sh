#!/bin/sh
# Writes manual pages of the programs that have no page of their own: man-pages.sh PYTHON FOLDER VERSION
set -eu
python=$1 folder=$2 version=$3
program=$folder/program
# usage: page NAME MODULE TITLE [COMMAND]
page() {
    printf '#!/bin/sh\nexec %s -m %s %s "$@"\n' "$python" "$2" "${4:-}" >"$program"
    chmod +x "$program"
    help2man --no-info --section 8 --manual 'svc manual' --source "svc $version" --version-string "$version" --name "$3" \
        --output "$folder/$1.8" "$program"
}
page svc-agent svc.agent.main 'agent of the container network plugin svc'
page svc-agent-run svc.agent.main 'run the agent of the container network plugin svc' run
page svc-controllers svc.controllers.main 'write what follows from Kubernetes objects to the datastore of svc'
page svc-controllers-run svc.controllers.main 'run the controllers of svc' run
page svc-controllers-health svc.controllers.main 'answer a probe of the controllers of svc' health
page svc-routes svc.routes.main 'routes, tunnels and NAT between the nodes of a cluster'
page svc-routes-run svc.routes.main 'keep the routes of this node current' run
page svc-routes-show svc.routes.main 'list blocks with their next hops' show
page svc-routes-clean svc.routes.main 'remove what svc-routes has made' clean
rm "$program"
