/* Holds a pod's namespaces: waits, collects ended children where it is process 1 of several containers, ends on TERM and INT. */

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number)
{
    (void)number;
    _exit(0);
}

static void collect(int number)
{
    (void)number;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void)
{
    struct sigaction ending = {.sa_handler = end};
    struct sigaction collecting = {.sa_handler = collect, .sa_flags = SA_NOCLDSTOP};

    if (sigaction(SIGTERM, &ending, 0) != 0 || sigaction(SIGINT, &ending, 0) != 0 || sigaction(SIGCHLD, &collecting, 0) != 0)
        return 1;
    for (;;)
        pause();
}
